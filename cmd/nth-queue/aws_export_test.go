package main

// RegionOf is regionOf, AWSConfig is awsConfig, ResourceOf is resourceOf, and HookSettings is hookSettings.
var (
	RegionOf     = regionOf
	AWSConfig    = awsConfig
	ResourceOf   = resourceOf
	HookSettings = hookSettings
)
