-- Sessions that may have events in a span of time, newest first. A seeded session may have events older than itself,
-- one with an open turn newer ones than its last boundary (`updated_at`).
-- since, until: epoch ms or NULL
-- → id
SELECT id FROM session WHERE (:since IS NULL OR updated_at >= :since OR open_turn IS NOT NULL)
  AND (:until IS NULL OR created_at <= :until OR seed_length > 0)
ORDER BY updated_at DESC, id DESC
