// A small client of latchfs's line protocol (latchfs serve --line-listen ADDRESS).
// usage: go build line_client.go; LATCHFS_LINES=box:7070 ./line_client lock|unlock|own NAME CLIENT [TOKEN]
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"time"
)

// LineClient opens a connection for each call, sends one line and reads one.
type LineClient struct{ Address, Client string }

func (c LineClient) ask(word, name string, more ...string) (string, error) {
	fields := append([]string{word, name, c.Client}, more...)
	for _, field := range fields {
		if strings.ContainsAny(field, ",\n") {
			return "", errors.New("a field has no comma and no line break")
		}
	}
	connection, err := net.DialTimeout("tcp", c.Address, 12*time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(12 * time.Second))
	fmt.Fprintln(connection, strings.Join(fields, ","))
	reply, err := bufio.NewReader(io.LimitReader(connection, 512)).ReadString('\n')
	reply = strings.TrimSuffix(reply, "\n")
	if reply == "ERROR" || reply == "TIMEOUT" || reply == "INVALID_FORMAT" {
		err = fmt.Errorf("the server answered %s", reply)
	}
	return reply, err
}

// TryLock returns the fencing token, or "" when the lock is held. It expires after the server's ttl.
func (c LineClient) TryLock(name string) (string, error) {
	reply, err := c.ask("LOCK", name, "token")
	if !strings.HasPrefix(reply, "SUCCESS,") {
		return "", err
	}
	return strings.TrimPrefix(reply, "SUCCESS,"), err
}

// TryUnLock returns whether the client held the lock; with a token, by that tenure.
func (c LineClient) TryUnLock(name string, token ...string) (bool, error) {
	reply, err := c.ask("UNLOCK", name, token...)
	return reply == "SUCCESS", err
}

// OwnTheLock returns the client that holds the lock, or "NONE".
func (c LineClient) OwnTheLock(name string) (string, error) {
	return c.ask("OWN", name)
}

func main() {
	address := os.Getenv("LATCHFS_LINES")
	if address == "" {
		address = "127.0.0.1:7070"
	}
	what, name, client := os.Args[1], os.Args[2], LineClient{address, os.Args[3]}
	said, err := "FAIL", error(nil)
	switch what {
	case "own":
		said, err = client.OwnTheLock(name)
	case "unlock":
		var held bool
		if held, err = client.TryUnLock(name, os.Args[4:]...); held {
			said = "SUCCESS"
		}
	default:
		var token string
		if token, err = client.TryLock(name); token != "" {
			said = "SUCCESS " + token
		}
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(said)
}
