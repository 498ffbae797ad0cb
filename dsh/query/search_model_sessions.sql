-- Sessions that used a model whose name has this in it, in any case.
-- part: text
-- → id
SELECT s.id FROM session s
WHERE EXISTS (SELECT 1 FROM request_header h WHERE h.session_id = s.id AND instr(lower(h.model), lower(:part)) > 0)
