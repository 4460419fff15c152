package main

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/role"
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
	found.HTTPClient = role.Unhurried(found.HTTPClient)
	if cfg.AWS.Endpoint != "" {
		found.BaseEndpoint = aws.String(strings.TrimSuffix(cfg.AWS.Endpoint, "/"))
	}
	return found, nil
}

// regionLabel is the form of a region's name, in any partition.
var regionLabel = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`)

// regionOf reads the region from a queue's URL, in any of the forms that AWS has for its hosts: that of SQS in the region, by
// FIPS or dual-stack too, the old one, and that of a VPC's endpoint; "" if it is of another form.
func regionOf(queue string) string {
	u, err := url.Parse(queue)
	if err != nil {
		return ""
	}
	labels := strings.Split(u.Hostname(), ".")
	isService := func(label string) bool { return label == "sqs" || label == "sqs-fips" || label == "queue" }
	if !slices.ContainsFunc(labels, isService) {
		return ""
	}
	if at := slices.IndexFunc(labels, regionLabel.MatchString); at >= 0 {
		return labels[at]
	}
	return ""
}
