package logind

import (
	"context"
	"fmt"
)

// Environment asks systemd for the environment of the first of these services that there is, whichever files say so: what
// Environment= sets, "NAME=value" each, and the paths on the host that EnvironmentFile= names, which go before that. If there is
// none of the services, all are empty.
func (h Host) Environment(ctx context.Context, services ...string) (service string, variables, files []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return "", nil, nil, fmt.Errorf("asking for the environment of %s: %w", services[0], err)
	}
	defer conn.Close()
	for _, service := range services {
		state, err := conn.GetUnitPropertyContext(ctx, service, "LoadState")
		if err != nil {
			return "", nil, nil, fmt.Errorf("asking systemd for %s: %w", service, err)
		}
		if state.Value.Value() != "loaded" {
			continue
		}
		if err := property(ctx, conn, service, "Environment", &variables); err != nil {
			return "", nil, nil, err
		}
		var named []struct {
			Path    string
			Ignored bool // if it is not there
		}
		if err := property(ctx, conn, service, "EnvironmentFiles", &named); err != nil {
			return "", nil, nil, err
		}
		for _, file := range named {
			files = append(files, file.Path)
		}
		return service, variables, files, nil
	}
	return "", nil, nil, nil
}
