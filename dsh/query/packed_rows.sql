-- The packed events of a session, with their text.
-- session: id; low: first seq; limit: rows
-- → seq, data (JSON)
SELECT p.seq, e.data FROM packed_event p JOIN event e ON e.session_id = p.session_id AND e.seq = p.seq
WHERE p.session_id = :session AND p.seq >= :low AND e.type <> 'request/header' ORDER BY p.seq LIMIT :limit
