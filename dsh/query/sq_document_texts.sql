-- What some documents are made of, in no order.
-- ids: JSON array of document ids
-- → id, type, data (JSON)
SELECT d.id, d.type, d.data FROM json_each(:ids) j CROSS JOIN search_event d ON d.id = j.value
