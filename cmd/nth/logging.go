package main

import (
	"errors"
	"io"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/systemd"
)

// complain writes what ends the program.
func complain(stderr io.Writer, err error) {
	message, text := finalWords(err)
	if message == "" {
		text = "nth: " + text
	}
	logging.Fatal(stderr, message, text)
}

// finalWords are the ID of the message that says what ended the program, and its text. With wrong settings every line
// begins with the name of a file.
func finalWords(err error) (message, text string) {
	if _, wrongConfig := errors.AsType[program.ConfigError](err); wrongConfig {
		message = systemd.ConfigInvalid
	}
	return message, err.Error()
}
