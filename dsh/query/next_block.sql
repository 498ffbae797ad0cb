-- The id that the next block of packed text gets.
-- → id
SELECT coalesce(max(id), 0) + 1 FROM packed_block
