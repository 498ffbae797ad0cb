-- What some documents are, in the order of their ids as given.
-- ids: JSON array of document ids
-- → id, session_id, seq, type, time
SELECT d.id, d.session_id, d.seq, d.type, d.time
FROM json_each(:ids) j CROSS JOIN search_document d ON d.id = j.value ORDER BY j.key
