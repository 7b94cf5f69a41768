// Keeps values in a Map, for one who asks over a Unix socket in redis's inline commands.
// usage: values.js SOCKET
'use strict';
const net = require('net');
const kept = new Map();
net
  .createServer((client) => {
    let rest = '';
    client.setEncoding('latin1');
    client.on('data', (received) => {
      const lines = (rest + received).split('\r\n');
      rest = lines.pop();
      let answers = '';
      for (const line of lines) {
        const [command, name, value] = line.split(' ');
        if (command === 'SHUTDOWN') process.exit(0);
        if (command === 'SET') {
          kept.set(name, Buffer.from(value, 'latin1'));
          answers += '+OK\r\n';
        } else {
          const found = kept.get(name).latin1Slice();
          answers += `$${found.length}\r\n${found}\r\n`;
        }
      }
      client.write(answers, 'latin1');
    });
  })
  .listen(process.argv[2]);
