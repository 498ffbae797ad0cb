-- Tool calls of the open step that have no result, in the order the model made them (PE-35).
-- session: id of a session with an open step: it is the last one, and its events are all that follow its start
-- → call_id, call_seq (NULL if the call was not logged as started)
SELECT b.value ->> 'id',
  (SELECT min(c.seq) FROM event c WHERE c.session_id = :session AND c.seq > s.start_seq AND c.type = 'tool/call'
     AND c.data ->> 'callId' = b.value ->> 'id')
FROM (SELECT seq AS start_seq FROM event WHERE session_id = :session AND type = 'step/start' AND type <> 'assistant/chunk'
      ORDER BY part DESC, seq DESC LIMIT 1) s
JOIN event m ON m.session_id = :session AND m.seq > s.start_seq AND m.type = 'assistant/message'
JOIN json_each(m.data, '$.content') b ON b.value ->> 'type' = 'tool-call'
WHERE NOT EXISTS (SELECT 1 FROM event r WHERE r.session_id = :session AND r.seq > m.seq AND r.type = 'tool/result'
                  AND r.data ->> 'callId' = b.value ->> 'id')
ORDER BY m.seq, b.key
