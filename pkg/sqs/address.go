package sqs

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Address is what the URL of a queue says. A field is empty if the URL does not say it.
type Address struct{ Region, Account, Name string }

var (
	// regionLabel matches the name of a region, in any partition.
	regionLabel = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`)
	accountID   = regexp.MustCompile(`^[0-9]{12}$`)
)

// ParseURL reads the URL of a queue. It finds the region in all hosts of SQS: public ones (also for FIPS and dual-stack), legacy ones, and VPC
// endpoints. It takes no region from the host of another service.
func ParseURL(address string) Address {
	u, err := url.Parse(address)
	if err != nil {
		return Address{}
	}
	account, name, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if !accountID.MatchString(account) {
		account = ""
	}
	found := Address{Account: account, Name: name}
	labels := strings.Split(u.Hostname(), ".")
	isSQS := slices.ContainsFunc(labels, func(label string) bool { return label == "sqs" || label == "sqs-fips" || label == "queue" })
	if at := slices.IndexFunc(labels, regionLabel.MatchString); isSQS && at >= 0 {
		found.Region = labels[at]
	}
	return found
}

// Resource returns the queue's ARN after the partition, such as ":sqs:eu-central-1:123456789012:interruptions". It returns "" if the URL lacks
// the account or the queue's name. If the URL lacks the region, region is in the ARN.
func (a Address) Resource(region string) string {
	if a.Account == "" || a.Name == "" {
		return ""
	}
	return strings.Join([]string{":sqs", cmp.Or(a.Region, region), a.Account, a.Name}, ":")
}
