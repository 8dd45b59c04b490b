"""From a build tree to a relocatable archive."""
