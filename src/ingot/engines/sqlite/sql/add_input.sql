-- An input of a job has come.
UPDATE jobs SET inputs = json_patch(inputs, json_object(?2, ?3)) WHERE number = ?1
