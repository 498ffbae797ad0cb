-- What some documents are made of, in the order of their ids as given.
-- ids: JSON array of document ids
-- → id, type, data (JSON)
SELECT d.id, d.type, d.data FROM json_each(:ids) j CROSS JOIN search_event d ON d.id = j.value ORDER BY j.key
