package drain

// ReadClaim is how the annotation is read.
var ReadClaim = readClaim
