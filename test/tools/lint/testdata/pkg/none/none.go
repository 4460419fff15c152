package none // want staticcheck
