-- Sessions that used a model whose name has this in it, in any case.
-- part: text
-- → id
SELECT session_id FROM summary WHERE instr(lower(model), lower(:part)) > 0
