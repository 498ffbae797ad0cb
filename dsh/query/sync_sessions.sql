-- Every session as a copy needs it.
-- → id, length, incarnation, parent_session, source
SELECT id, length, incarnation, parent_session, source FROM session
