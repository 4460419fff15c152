package sqs_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/sqs"
)

func TestParseURL_KnowsEveryFormOfAQueuesAddress(t *testing.T) {
	t.Parallel()
	const path = "/123456789012/i"
	for address, want := range map[string]sqs.Address{
		"https://sqs.eu-central-1.amazonaws.com" + path + "/":                           {"eu-central-1", "123456789012", "i"},
		"https://sqs.cn-north-1.amazonaws.com.cn" + path:                                {"cn-north-1", "123456789012", "i"},
		"https://sqs.us-gov-west-1.amazonaws.com" + path:                                {"us-gov-west-1", "123456789012", "i"},
		"https://sqs.us-iso-east-1.c2s.ic.gov" + path:                                   {"us-iso-east-1", "123456789012", "i"},
		"https://sqs.us-isob-east-1.sc2s.sgov.gov" + path:                               {"us-isob-east-1", "123456789012", "i"},
		"https://sqs.eusc-de-east-1.amazonaws.eu" + path:                                {"eusc-de-east-1", "123456789012", "i"},
		"https://sqs-fips.us-east-1.amazonaws.com" + path:                               {"us-east-1", "123456789012", "i"},
		"https://sqs.us-east-1.api.aws" + path:                                          {"us-east-1", "123456789012", "i"},
		"https://us-west-2.queue.amazonaws.com" + path:                                  {"us-west-2", "123456789012", "i"},
		"https://vpce-0a1b2c3d4e5f-abcdefgh.sqs.eu-central-1.vpce.amazonaws.com" + path: {"eu-central-1", "123456789012", "i"},
		"http://127.0.0.1:4566" + path:                                                  {"", "123456789012", "i"},
		"https://proxy.eu-central-1.example.com" + path:                                 {"", "123456789012", "i"},
		"https://sqs.eu-central-1.amazonaws.com/i":                                      {"eu-central-1", "", ""},
		"://": {},
	} {
		if got := sqs.ParseURL(address); got != want {
			t.Errorf("%s is %+v, want %+v", address, got, want)
		}
	}
}

func TestResource_IsTheARNWithoutItsPartition(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://sqs.eu-central-1.amazonaws.com/123456789012/i": ":sqs:eu-central-1:123456789012:i",
		"https://localhost:4566/123456789012/i":                 ":sqs:us-east-1:123456789012:i",
		"https://sqs.eu-central-1.amazonaws.com/i":              "",
	} {
		if got := sqs.ParseURL(address).Resource("us-east-1"); got != want {
			t.Errorf("%s is %q, want %q", address, got, want)
		}
	}
}
