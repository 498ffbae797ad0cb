-- What packing a session looks at: its own events with much text that are not packed, in order.
-- session: id; chars: length of an event's data from which on; low: first seq; limit: rows
-- → seq, type, data (JSON)
SELECT e.seq, e.type, e.data FROM event e
WHERE e.session_id = :session AND e.seq >= :low
  AND e.seq >= coalesce((SELECT f.boundary + 1 FROM fork f WHERE f.id = :session), 0) AND length(e.data) >= :chars
  AND e.type <> 'request/header' AND NOT EXISTS (SELECT 1 FROM packed_event p WHERE p.session_id = :session AND p.seq = e.seq)
ORDER BY e.part, e.seq LIMIT :limit
