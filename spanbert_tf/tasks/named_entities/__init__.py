"""Named entities: tokens are classified, and neighbours of one type are an entity."""
