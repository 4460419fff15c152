package none // want godoclint staticcheck
