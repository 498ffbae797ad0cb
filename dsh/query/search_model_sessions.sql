-- Sessions that used a model whose name has this in it, in any case.
-- part: text
-- → id
SELECT DISTINCT session_id FROM request_header WHERE instr(lower(model), lower(:part)) > 0
