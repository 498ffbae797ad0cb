-- Which of some results are of certain tools: the call stands shortly before its result, so it is looked for backwards.
-- ids: JSON array of document ids; names: JSON array of tools' names
-- → id
SELECT r.id FROM json_each(:ids) j CROSS JOIN search_event r ON r.id = j.value
WHERE (SELECT c.data ->> 'name' FROM event c
       WHERE c.session_id = r.session_id AND c.seq < r.seq AND +c.type = 'tool/call'
         AND c.data ->> 'callId' = r.data ->> 'callId'
       ORDER BY c.part DESC, c.seq DESC LIMIT 1) IN (SELECT value FROM json_each(:names))
