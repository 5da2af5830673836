// A Node worker (amqplib) that says when a job is done.
const amqp = require('amqplib');

const work = async (message) => console.log(`made ${message.content}`);

(async () => {
  const connection = await amqp.connect(process.env.AMQP_URL);
  connection.on('error', (error) => console.error(error));
  connection.on('close', () => process.exit(1)); // its supervisor restarts it
  const channel = await connection.createChannel();
  await channel.prefetch(1);
  await channel.consume(process.env.QUEUE, async (message) => {
    let answer = { outcome: 'done' };
    try {
      await work(message);
    } catch (error) {
      answer = { outcome: 'retry', reason: String(error) };
    }
    const { headers } = message.properties;
    const queue = headers['x-sluicegate-done'];
    if (queue) {
      const correlationId = headers['x-sluicegate-done-token'];
      channel.sendToQueue(queue, Buffer.from(JSON.stringify(answer)), { correlationId });
    }
    channel.ack(message);
  });
  console.log('ready');
})();
