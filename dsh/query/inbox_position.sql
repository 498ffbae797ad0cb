-- Where a message stands in the order of all inboxes.
-- message: its id
-- → position
SELECT position FROM inbox WHERE message_id = :message
