package imds

import (
	"context"
	"fmt"
	"io/fs"
)

// Document asks once for a document, by its path below /latest/meta-data/, and returns it as it is. The error is
// fs.ErrNotExist if EC2 has none there.
func (s *Source) Document(ctx context.Context, path string) ([]byte, error) {
	body, found, err := s.once().get(ctx, path)
	if err == nil && !found {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	return body, nil
}
