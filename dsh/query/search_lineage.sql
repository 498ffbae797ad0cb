-- Whose events a session's log is made of: its own, and for a fork those of its ancestors up to a seq.
-- session: id
-- → id, last (highest seq that counts)
SELECT owner_id, last FROM lineage WHERE session_id = :session
