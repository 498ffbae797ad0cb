-- Whose events a session's log is made of: its own, and for a fork those of its ancestors up to a seq.
-- session: id
-- → id, last (highest seq that counts)
WITH RECURSIVE line(id, last) AS (
  SELECT :session, 9223372036854775807
  UNION ALL SELECT f.parent_session, min(line.last, f.boundary) FROM line JOIN fork f ON f.id = line.id)
SELECT id, last FROM line
