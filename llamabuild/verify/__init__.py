"""Judge builds, bundles and archives; nothing here changes what it reads."""
