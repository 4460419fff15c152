package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"github.com/nth-project/nth/pkg/config"
)

// awsConfig finds credentials wherever AWS's programs look for them: an instance's role, a service account's, a pod's,
// the environment. None is fetched yet.
func awsConfig(ctx context.Context, cfg config.Queue) (aws.Config, error) {
	region := cfg.AWS.Region
	if region == "" {
		region = regionOf(cfg.Queue.URL)
	}
	var options []func(*awsconfig.LoadOptions) error
	if region != "" {
		options = append(options, awsconfig.WithRegion(region))
	}
	found, err := awsconfig.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("reading AWS's own settings: %w", err)
	}
	if cfg.AWS.Endpoint != "" {
		found.BaseEndpoint = aws.String(strings.TrimSuffix(cfg.AWS.Endpoint, "/"))
	}
	return found, nil
}

// regionOf reads the region from a queue's URL such as https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions;
// "" if it is of another form.
func regionOf(queue string) string {
	u, err := url.Parse(queue)
	if err != nil {
		return ""
	}
	service, rest, _ := strings.Cut(u.Hostname(), ".")
	region, domain, _ := strings.Cut(rest, ".")
	if service != "sqs" || !strings.HasPrefix(domain, "amazonaws.com") {
		return ""
	}
	return region
}
