package config

import "regexp"

// AWS is the table [aws].
type AWS struct {
	Region   string // "" is the instance's
	Endpoint string // "" is the region's own
}

func (c *AWS) table() table {
	return table{"aws", "AWS's own services, which are asked with the role of the instance.", []setting{
		{"region", text{&c.Region, func(s string) bool { return s == "" || region.MatchString(s) }, `a region such as "eu-central-1", or ""`},
			"The region to ask in. Empty is the one that the instance is in."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, such as that of a VPC endpoint without private DNS, or a rehearsal's. Empty is the region's own."},
	}}
}

var region = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]+$`)
