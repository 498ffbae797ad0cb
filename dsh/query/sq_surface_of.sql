-- Which of some events are or were nodes of a session's surface, and which event replaced them there.
-- places: JSON array of [session id, seq]
-- → place (index in the array), replaced_by (seq or NULL)
SELECT j.key, h.replaced_by
FROM json_each(:places) j CROSS JOIN surface_history h ON h.session_id = j.value ->> 0 AND h.seq = j.value ->> 1
