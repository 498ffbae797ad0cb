-- What some documents say, and of which sessions they are.
-- ids: JSON array of document ids
-- → id, text, title, cwd (both of the session that wrote the event)
SELECT d.id, d.text, t.title, s.cwd
FROM json_each(:ids) j CROSS JOIN search_document d ON d.id = j.value
JOIN session s ON s.id = d.session_id JOIN title t ON t.session_id = s.id
