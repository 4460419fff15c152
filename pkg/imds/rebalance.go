package imds

import (
	"context"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// rebalancePath is the recommendation to move work off a spot instance:
//
//	{"noticeTime": "2020-10-27T08:22:00Z"}
//
// It is absent until EC2 sees an elevated risk of interruption. EC2 is not known to take it back.
const rebalancePath = "events/recommendations/rebalance"

// rebalanceRecommendation looks for the recommendation.
func rebalanceRecommendation(c *client) look {
	return func(ctx context.Context) (reading, error) { return read(ctx, c, rebalancePath, parseRebalance) }
}

// parseRebalance reads the recommendation. Its time is all it says and all it is known by, so without one it is an error.
func parseRebalance(body []byte) (reading, error) {
	var doc struct{ NoticeTime string }
	if err := decode(body, &doc); err != nil {
		return reading{}, err
	}
	noticed, err := parseTime(doc.NoticeTime)
	if err != nil {
		return reading{}, err
	}
	return reading{events: []event.Event{{
		ID:      contentID(event.RebalanceRecommendation, noticed.Format(time.RFC3339Nano)),
		Kind:    event.RebalanceRecommendation,
		State:   event.Pending,
		Noticed: noticed,
	}}}, nil
}
