-- Ids of the stored sessions, a fork after the session it was made from.
-- → id
WITH RECURSIVE tree(id, depth) AS (
  SELECT s.id, 0 FROM session s
    WHERE NOT EXISTS (SELECT 1 FROM fork f JOIN session p ON p.id = f.parent_session WHERE f.id = s.id)
  UNION ALL
  SELECT f.id, t.depth + 1 FROM tree t JOIN fork f ON f.parent_session = t.id
)
SELECT id FROM tree ORDER BY depth, id
