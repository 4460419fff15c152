package sqs

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Address is what the URL of a queue says. Each field is empty if the URL does not say it.
type Address struct{ Region, Account, Name string }

// regionLabel is the form of the name of a region, in any partition, and accountID that of an account's ID.
var regionLabel, accountID = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`), regexp.MustCompile(`^[0-9]{12}$`)

// ParseURL reads the URL of a queue. The host may be SQS's in the region (also for FIPS and dual-stack), a legacy one, or that of a VPC endpoint;
// that of another service does not name the queue's region.
func ParseURL(address string) Address {
	u, err := url.Parse(address)
	if err != nil {
		return Address{}
	}
	account, name, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
	if !accountID.MatchString(account) {
		account = ""
	}
	found, labels := Address{Account: account, Name: name}, strings.Split(u.Hostname(), ".")
	isService := func(label string) bool { return label == "sqs" || label == "sqs-fips" || label == "queue" }
	if at := slices.IndexFunc(labels, regionLabel.MatchString); at >= 0 && slices.ContainsFunc(labels, isService) {
		found.Region = labels[at]
	}
	return found
}

// Resource is the queue's ARN after the partition, such as ":sqs:eu-central-1:123456789012:interruptions"; empty if the URL does not name account
// and queue. region counts if the URL names none.
func (a Address) Resource(region string) string {
	if a.Account == "" || a.Name == "" {
		return ""
	}
	return strings.Join([]string{":sqs", cmp.Or(a.Region, region), a.Account, a.Name}, ":")
}
