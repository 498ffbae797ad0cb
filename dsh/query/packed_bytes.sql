-- How many sessions have packed texts, and how much these take.
-- → sessions, bytes
SELECT count(DISTINCT session_id), coalesce(sum(bytes), 0) FROM packed_block WHERE session_id IS NOT NULL
