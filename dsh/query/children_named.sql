-- Sessions whose header names a parent, shared events or not.
-- parent: id
-- → id, delegation_depth
SELECT id, delegation_depth FROM session WHERE parent_session = :parent ORDER BY created_at, id
