-- What names the state of a session's log: any two states differ in one of these.
-- session: id
-- → incarnation, length, changes (rises when stored events of it are changed, of its own or inherited ones)
SELECT s.incarnation, s.length, (SELECT sum(o.changes) FROM lineage l JOIN session o ON o.id = l.owner_id
  WHERE l.session_id = s.id AND l.last >= 0)
FROM session s WHERE s.id = :session
