-- Folders whose plugins may run.
-- → folder, trusted_at (epoch ms)
SELECT folder, trusted_at FROM trusted_folder ORDER BY folder
