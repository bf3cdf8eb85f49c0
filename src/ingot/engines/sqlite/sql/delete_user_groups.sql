DELETE FROM user_groups WHERE user = ?
