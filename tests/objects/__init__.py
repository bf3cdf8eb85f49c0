"""Tests of the object stores: the folder and the bucket."""
