package logind

import (
	"context"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"
)

// Credentials asks systemd which credentials a service is given, whichever files say so: each is a line as in a unit, such as
// "LoadCredential=ID:PATH". stale tells that these files have changed since systemd has read them. If there is no such service,
// loaded is false. A systemd that knows no credentials gives none.
func (h Host) Credentials(ctx context.Context, service string) (lines []string, loaded, stale bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return nil, false, false, fmt.Errorf("asking for the credentials of %s: %w", service, err)
	}
	defer conn.Close()
	state, err := conn.GetUnitPropertyContext(ctx, service, "LoadState")
	if err != nil {
		return nil, false, false, fmt.Errorf("asking systemd for %s: %w", service, err)
	}
	if state.Value.Value() != "loaded" {
		return nil, false, false, nil
	}
	if waits, err := conn.GetUnitPropertyContext(ctx, service, "NeedDaemonReload"); err == nil {
		stale, _ = waits.Value.Value().(bool)
	}
	for _, name := range []string{"LoadCredential", "LoadCredentialEncrypted"} {
		var found []struct{ ID, Path string }
		if err := ifKnown(property(ctx, conn, service, name, &found)); err != nil {
			return nil, false, false, err
		}
		for _, c := range found {
			lines = append(lines, name+"="+c.ID+":"+c.Path)
		}
	}
	for _, name := range []string{"SetCredential", "SetCredentialEncrypted"} {
		var found []struct {
			ID   string
			Data []byte
		}
		if err := ifKnown(property(ctx, conn, service, name, &found)); err != nil {
			return nil, false, false, err
		}
		for _, c := range found {
			lines = append(lines, name+"="+c.ID+":"+string(c.Data))
		}
	}
	var globs []string
	if err := ifKnown(property(ctx, conn, service, "ImportCredential", &globs)); err != nil {
		return nil, false, false, err
	}
	for _, glob := range globs {
		lines = append(lines, "ImportCredential="+glob)
	}
	return lines, true, stale, nil
}

// ifKnown is an error of a question, unless it is that this systemd does not know what it is asked for.
func ifKnown(err error) error {
	if fault, ok := errors.AsType[dbus.Error](err); ok && fault.Name == "org.freedesktop.DBus.Error.UnknownProperty" {
		return nil
	}
	return err
}
