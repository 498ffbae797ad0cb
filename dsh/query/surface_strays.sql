-- Nodes of a surface that lead to another event than the one of their seq.
-- session: id
-- → seq
SELECT v.seq FROM surface v
WHERE v.session_id = :session AND NOT EXISTS (
  SELECT 1 FROM event e WHERE e.session_id = :session AND e.seq = v.seq AND e.type = v.type AND e.data = v.data)
ORDER BY v.seq
