-- The ids of sessions that were deleted here.
-- → id
SELECT id FROM deleted_session
