-- What some documents are, in the order of their ids as given, and in which session they are found: that which wrote
-- the event, or if it is hidden the oldest fork that is not and shares the event. (There is none for most of what
-- hidden sessions said.)
-- ids: JSON array of document ids; session: id of the one to search, hidden or not, or NULL
-- → id, session_id (NULL if it is not to be found), owner_id (who wrote it), seq, type, time
SELECT d.id,
  CASE WHEN w.hidden IS NULL THEN d.session_id WHEN :session IS NOT NULL THEN :session ELSE
    (SELECT f.id FROM lineage l JOIN session f ON f.id = l.session_id
     WHERE l.owner_id = d.session_id AND l.last >= d.seq AND f.hidden IS NULL ORDER BY f.created_at, f.id LIMIT 1) END,
  d.session_id, d.seq, d.type, d.time
FROM json_each(:ids) j CROSS JOIN search_event d ON d.id = j.value CROSS JOIN session w ON w.id = d.session_id
ORDER BY j.key
