-- Streamed fragments of a session's own closed turns, in runs without a gap: what thinning leaves out. Reports of usage
-- and the ends of answers stay.
-- session: id
-- → first, last (seqs)
SELECT min(seq), max(seq) FROM (
  SELECT e.seq, e.seq - row_number() OVER (ORDER BY e.seq) AS run FROM event e
  WHERE e.session_id = :session AND e.type = 'assistant/chunk' AND e.span = 1 AND e.surface_op IS NULL
    AND e.seq >= coalesce((SELECT f.boundary + 1 FROM fork f WHERE f.id = :session), 0)
    AND e.seq < coalesce((SELECT max(t.start_seq) FROM turn t WHERE t.session_id = :session AND t.end_seq IS NULL), 1e18)
    AND e.data ->> '$.chunk.type' IN ('block-start', 'text-delta', 'reasoning-delta', 'tool-call-delta', 'block-end'))
GROUP BY run HAVING count(*) > 1 ORDER BY 1
