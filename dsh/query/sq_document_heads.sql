-- What some documents are, in no order.
-- ids: JSON array of document ids
-- → id, session_id (of the session that wrote the event), seq, type, time
SELECT d.id, d.session_id, d.seq, d.type, d.time FROM json_each(:ids) j CROSS JOIN search_event d ON d.id = j.value
