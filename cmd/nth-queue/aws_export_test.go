package main

// RegionOf is regionOf, and AWSConfig is awsConfig.
var (
	RegionOf  = regionOf
	AWSConfig = awsConfig
)
