-- What some documents are made of, and facts of the sessions they are shown in.
-- places: JSON array of [document id, session id]
-- → id, type, data (JSON), title, cwd (both of the session)
SELECT d.id, d.type, d.data, t.title, s.cwd
FROM json_each(:places) j CROSS JOIN search_event d ON d.id = j.value ->> 0
CROSS JOIN session s ON s.id = j.value ->> 1 CROSS JOIN title t ON t.session_id = s.id
