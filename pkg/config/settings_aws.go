package config

import "regexp"

// AWS is the table [aws].
type AWS struct {
	Region   string // "" is the instance's, or the queue's
	Endpoint string // "" is the region's own
	// EC2Endpoint is nth's alone: nth-queue has one for all.
	EC2Endpoint string
}

func (c *AWS) table() table {
	return table{"aws", "AWS's own services, which are asked with the role of the instance.", []setting{
		{"region", regionName(&c.Region),
			"The region to ask in. Empty is the one that the instance is in."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address of Auto Scaling to ask, such as that of a VPC endpoint without private DNS, or a rehearsal's. Empty is the region's own, or what `AWS_ENDPOINT_URL_AUTO_SCALING`, `AWS_USE_FIPS_ENDPOINT` and their like in the environment say."},
		{"ec2_endpoint", optionalEndpoint(&c.EC2Endpoint),
			"The same for EC2."},
	}}
}

func (c *AWS) queueTable() table {
	return table{"aws", "AWS's own services, which are asked with the credentials that AWS's programs would find: an instance's role, those of a pod or a service account, the environment.", []setting{
		{"region", regionName(&c.Region),
			"The region to ask in. Empty is the one in the queue's URL; of a URL that names none, it is what `AWS_REGION` in the environment says."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, for SQS, EC2 and Auto Scaling alike, such as a rehearsal's. Empty is the region's own; `AWS_ENDPOINT_URL_SQS` and its like in the environment lead to the endpoints of a VPC."},
	}}
}

func regionName(at *string) text {
	return text{at, func(s string) bool { return s == "" || region.MatchString(s) }, `a region such as "eu-central-1", or ""`}
}

var region = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`)
